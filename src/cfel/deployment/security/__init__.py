"""Who may do what: identities, certificates, revocation, the experiment check, and limits per caller."""
