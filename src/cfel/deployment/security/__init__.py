"""Who may do what: identities, certificates, revocation, and limits per caller."""
