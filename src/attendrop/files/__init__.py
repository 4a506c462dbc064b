"""Files of pre-trained models, and outputs that never replace the user's files."""
