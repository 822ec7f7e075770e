#!/bin/sh
# Checks that code outside of mesh/ and sharding/ asks for dimensions of the mesh by role. Run it in
# the repository's folder.
set -eu

if grep -rEn --include='*.h' --include='*.cpp' 'Mesh::(dp|ep|cp|mp|pp|dp_replicate)\b' \
  engine bindings program module fuzz |
  grep -Ev '^engine/(mesh|sharding)/|^engine/include/redco/(mesh|sharding)\.h:'; then
  echo 'name the role of the dimension: Mesh::batch, Mesh::context, Mesh::zero, Mesh::model (redco/mesh.h)'
  exit 1
fi
