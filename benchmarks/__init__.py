"""Performance figures: Thalweg beside hand-written ZeroMQ, Ray and Dask, in alternating rounds of one run."""
