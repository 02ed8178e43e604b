"""What a bundle costs, and how far its answers are from its checkpoint's."""
