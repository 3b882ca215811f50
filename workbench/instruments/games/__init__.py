"""Tasks of reasoning-gym and TextArena, and the levels of the first."""
