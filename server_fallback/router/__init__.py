"""The hybrid router: which side answers a request, and one answer made of what both sides say."""
