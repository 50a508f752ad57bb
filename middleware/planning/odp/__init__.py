"""Optimal placement of operators by response time, availability and network metrics (Cardellini et al., 2016)."""
