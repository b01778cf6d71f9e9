"""Trackers that come with Holdfast."""
