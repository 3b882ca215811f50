"""Each prompt read once while decoding, and no padding in the loss."""
