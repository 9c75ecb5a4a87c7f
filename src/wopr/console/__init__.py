"""The console: web pages by area over a small shell (session, pages, forms, rendering)."""
