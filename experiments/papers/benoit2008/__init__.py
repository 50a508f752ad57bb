"""Benoit, Casanova, Rehn-Sonigo, Robert: which machines to buy for a stream (INRIA RR-6578, 2008)."""
