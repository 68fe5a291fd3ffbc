#!/bin/sh
# Writes the plain manifests beside it from the Helm chart, for whoever has no Helm. Needs `helm` 4.
set -eu
cd "$(dirname "$0")"
for role in provider trustee tenant; do
	helm template pharoah ../helm/pharoah --namespace pharoah --set "role=$role" \
		--set "image.repository=registry.example/pharoah-$role" >"$role.yaml"
done
