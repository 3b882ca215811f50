"""Teaching: lessons, a glossary, and a gallery of broken runs."""
