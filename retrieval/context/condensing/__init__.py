"""What strategies say less with: themes, tiers, a profile, fewer words."""
