#!/usr/bin/env bash
# test_patches.sh - does each planted error still fit the sources? One that does not is not
# tried by run.sh, so a commit that moves its lines must move the patch too.
#
# ctest runs it as style_mutations. It prints the patches that do not apply.
set -u
cd "$(dirname "$0")/../.." || exit 1
type -P git >/dev/null || { echo "skipped: no git"; exit 77; }
bad=0
for patch in tests/mutation/errors/*.patch; do
    git apply --check "$patch" 2>/dev/null || { echo "$patch does not apply"; bad=1; }
done
exit $bad
