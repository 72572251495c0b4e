# Sourced by the scripts that build a Debian of their own: its packages, and a folder for it.

# Installs packages, given as `command:package`, whose command is missing.
need_packages() {
    local each missing=()
    for each in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${each%%:*}" > /dev/null || missing+=("${each#*:}")
    done
    if [ ${#missing[@]} != 0 ]; then
        apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
    fi
}

# Prints the mirrors of this machine for Debian's release $1, as lines of sources.list; nothing if it is not a Debian.
debian_sources() {
    # A suite is the codename, and perhaps -updates or -security.
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' \
        | awk -v own="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" -v wanted="$1" \
            'own && sub("^" own, wanted, $3) && $3 ~ /^[a-z]+(-updates|-security)?$/' | sort -u || true
}

# Makes a folder for a run of kind $1, named by $work. A run holds the lock of its folder; a killed run leaves only an
# unlocked folder, which the next one removes.
make_work_folder() {
    local all own left
    parent=${TMPDIR:-/var/tmp}/monarch-hpc-$1
    mkdir -p "$parent"
    exec {all}< "$parent"
    flock "$all"
    for left in "$parent"/*/; do
        if [ -d "$left" ]; then flock --nonblock "$left" rm -rf --one-file-system "$left" || true; fi
    done
    work=$(mktemp -d "$parent/XXXXXX")
    # apt downloads as its own user.
    chmod 755 "$work"
    exec {own}< "$work"
    flock "$own"
    exec {all}<&-
}

remove_work_folder() {
    rm -rf --one-file-system "$work"
    rmdir --ignore-fail-on-non-empty "$parent"
}
