"""Pages of reviews: feedback, queues and judges."""
