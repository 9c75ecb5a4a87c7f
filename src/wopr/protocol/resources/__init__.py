"""Resources that are not events, such as annotations, reviews, webhooks and quotas."""
