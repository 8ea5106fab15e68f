"""Choosing a schedule for a program: costs, transfers, rules of users, the bridge from schedules to passes."""
