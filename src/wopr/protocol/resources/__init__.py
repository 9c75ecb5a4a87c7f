"""Resources that are not events: annotations, reviews, webhooks, audit entries, quotas, the fleet."""
