/* libucp, loaded at run time: one binary works with the site's UCX module, the distribution's and the wheel's.
 *
 * `mh_ucp.NAME(...)` calls ucp_NAME. Include in one translation unit only. No lock: load with the GIL held, once,
 * before any thread calls through the table.
 */
#ifndef MH_LIBRARY_H
#define MH_LIBRARY_H

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"

typedef struct mh_library {
#define MH_FIELD(result, name, arguments) result(*name) arguments;
    MH_FUNCTIONS(MH_FIELD)
    MH_OPTIONAL_FUNCTIONS(MH_FIELD)
#undef MH_FIELD
    /* From libucs; see mh_status_text. */
    const char *(*status_string)(mh_status_t status);
} mh_library_t;

static mh_library_t mh_ucp;
static void *mh_library_handle;
static char mh_library_error_text[PATH_MAX + 256];
static char mh_library_path_text[PATH_MAX];

/* Why the last mh_library_load failed. */
static inline const char *mh_library_error(void) { return mh_library_error_text; }

/* The file that the functions were loaded from; empty if none is loaded. */
static inline const char *mh_library_path(void) { return mh_library_path_text; }

/* "1.22.0"; empty if none is loaded. */
static inline const char *mh_library_version(void) {
    return mh_library_handle ? mh_ucp.get_version_string() : "";
}

/* UCX's text for a status. */
static inline const char *mh_status_text(mh_status_t status) {
    return mh_ucp.status_string ? mh_ucp.status_string(status) : "no libucp is loaded";
}

/* Libraries that libucp needs, in dependency order. */
static const char *const mh_library_siblings[] = {"libucm.so.0", "libucs.so.0", "libuct.so.0"};
enum { MH_LIBRARY_SIBLINGS = sizeof(mh_library_siblings) / sizeof(mh_library_siblings[0]) };

/* Open the siblings that lie in the folder of *path*: a library without an rpath would otherwise be bound to those of
 * another UCX, which ends in undefined symbols at best. A sibling that is missing or does not open is left to the
 * loader. */
static void mh_library_open_siblings(const char *path, void *opened[MH_LIBRARY_SIBLINGS]) {
    const char *slash = strrchr(path, '/');
    char sibling[PATH_MAX];
    size_t i;

    for (i = 0; i < MH_LIBRARY_SIBLINGS; i++) {
        opened[i] = NULL;
        if (slash != NULL && (size_t)snprintf(sibling, sizeof(sibling), "%.*s/%s", (int)(slash - path), path,
                                              mh_library_siblings[i]) < sizeof(sibling)) {
            opened[i] = dlopen(sibling, RTLD_NOW | RTLD_LOCAL);
        }
    }
}

/* Fill the table from an open library; returns 0, or -1 with the name of a missing function in the error text. */
static int mh_library_fill(mh_library_t *table, void *handle, const char *path) {
    const char *missing = NULL;

#define MH_FIND(result, name, arguments) *(void **)&table->name = dlsym(handle, "ucp_" #name);
#define MH_NEED(result, name, arguments) \
    MH_FIND(result, name, arguments) \
    if (table->name == NULL && missing == NULL) { \
        missing = "ucp_" #name; \
    }
    MH_FUNCTIONS(MH_NEED)
    MH_OPTIONAL_FUNCTIONS(MH_FIND)
#undef MH_NEED
#undef MH_FIND
    /* dlsym also searches the library's dependencies. */
    *(void **)&table->status_string = dlsym(handle, "ucs_status_string");
    if (table->status_string == NULL && missing == NULL) {
        missing = "ucs_status_string";
    }
    if (missing != NULL) {
        snprintf(mh_library_error_text, sizeof(mh_library_error_text),
                 "%s has no function %s: is it UCX %d.%d or later?", path, missing, MH_API_MAJOR, MH_API_MINOR);
        return -1;
    }
    return 0;
}

/* Load libucp from a file, or by name from where the loader looks; returns 0, or -1 with the reason in
 * mh_library_error().
 *
 * A library that does not fit is closed again. Its libucs may stay loaded (it is linked that way), and then the next
 * candidate fails with an undefined symbol: the text says so, and the user names the right one in the configuration.
 * One that fits stays for the life of the process: loading another one fails, as two UCX in one process do not work. */
static int mh_library_load(const char *path) {
    void *siblings[MH_LIBRARY_SIBLINGS];
    mh_library_t table;
    Dl_info info;
    void *handle;
    size_t i;

    mh_library_open_siblings(path, siblings);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(mh_library_error_text, sizeof(mh_library_error_text), "%s", dlerror());
    } else if (mh_library_handle != NULL && handle != mh_library_handle) {
        snprintf(mh_library_error_text, sizeof(mh_library_error_text), "%s: this process uses %s already", path,
                 mh_library_path_text);
        dlclose(handle);
        handle = NULL;
    } else if (mh_library_fill(&table, handle, path) != 0) {
        dlclose(handle);
        handle = NULL;
    }
    /* An open library holds references to its dependencies. */
    for (i = 0; i < MH_LIBRARY_SIBLINGS; i++) {
        if (siblings[i] != NULL) {
            dlclose(siblings[i]);
        }
    }
    if (handle == NULL) {
        return -1;
    }
    mh_ucp = table;
    mh_library_handle = handle;
    if (dladdr(*(void **)&mh_ucp.get_version, &info) != 0 && info.dli_fname != NULL) {
        snprintf(mh_library_path_text, sizeof(mh_library_path_text), "%s", info.dli_fname);
    } else {
        snprintf(mh_library_path_text, sizeof(mh_library_path_text), "%s", path);
    }
    return 0;
}

#endif
