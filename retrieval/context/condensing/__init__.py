"""What strategies say less with: themes, tiers, importance, variety, fewer words."""
