#!/bin/sh
# Copies to own/NODE what each node may see: the authority's certificate, its own pair and the revocation list.
# As root, so that the files can belong to user 10001, as which the nodes run. Run it again after `cfel certs --renew` or `--revoke`: running nodes use the new files within seconds.
set -eu
umask 077
cd "$(dirname "$0")"
for pair in certificates/edge-*.pem certificates/device-*.pem certificates/operator-*.pem; do
    node=$(basename "$pair" .pem)
    mkdir -p "own/$node"
    for file in authority.pem "$node.pem" "$node.key" revoked.txt; do
        [ -e "certificates/$file" ] || continue
        # Replaced in one step: a node must never read half a file.
        cp "certificates/$file" "own/$node/.$file"
        [ "$(id -u)" != 0 ] || chown 10001 "own/$node" "own/$node/.$file"
        mv "own/$node/.$file" "own/$node/$file"
    done
done
