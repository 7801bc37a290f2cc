"""What several tests share: tiny models, the independent specification, the masked oracle, the policy
table.
"""
