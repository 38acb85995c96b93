"""Where images are stored: in a folder of this machine, or in a collection of Qdrant."""
