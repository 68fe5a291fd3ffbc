#!/bin/sh
# Writes the plain manifests beside it from the Helm chart, for whoever has no Helm. Needs `helm` 4. Lines without a word
# are left out, since versions of Helm differ in them.
set -eu
cd "$(dirname "$0")"

render() { # a file, a role, and values
	file=$1 role=$2
	shift 2
	helm template pharoah ../helm/pharoah --namespace pharoah --skip-tests --set "role=$role" \
		--set "image.repository=registry.example/pharoah-$role" "$@" | sed '/^$/d' >"$file.yaml"
}

for role in provider trustee tenant; do
	render "$role" "$role"
done
render provider-nodes provider --set nodes.label=true --set nodes.taint=gpu.nvidia.com
render tenant-admission tenant --set admission.enabled=true
