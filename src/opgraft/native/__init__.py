"""Find, open and describe the core and the user's libraries."""
