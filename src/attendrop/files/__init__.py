"""Files that are read and written: those of pre-trained models, and outputs that replace nothing of the user's."""
