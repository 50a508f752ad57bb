"""Mapping of tasks by neighbours' messages alone, over dedicated and public links (Asaduzzaman and Maheswaran)."""
