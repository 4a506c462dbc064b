"""Attribution of a prediction to attention positions, hidden units or heads."""
