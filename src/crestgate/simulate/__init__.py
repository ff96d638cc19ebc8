"""Replay of access logs against rules, on virtual time: whom would a limit hit?"""
