/* The environment that libucp reads while it starts, put in place and taken away at once.
 *
 * Other threads may be in getenv meanwhile: setenv moves the array that they read, and a program whose main thread
 * loaded torch beside a start of UCX died there by SIGSEGV. Here a new array takes the place of the old one, and neither
 * it nor its strings are freed, since readers may still walk them. Python's own changes need the GIL, which callers
 * hold. */

#ifndef MC_ENVIRON_H
#define MC_ENVIRON_H

#include <stdlib.h>
#include <string.h>

extern char **environ;

typedef struct mc_environ {
    char **before, **array; /* the array that was in place, and ours */
    char **own;             /* our entries */
    char **hidden;          /* those of *before* that they replace */
    size_t num, num_hidden;
} mc_environ;

/* The last array, which is used again where it would be the same: then starts by the thousand take no more memory. */
static char **mc_environ_last;

static size_t mc_environ_count(char **array) {
    size_t count = 0;
    while (array && array[count])
        count++;
    return count;
}

/* The entry of *array*, of *count* ones, for the variable that *entry* sets; NULL if there is none. */
static char *mc_environ_find(char **array, size_t count, const char *entry) {
    size_t name_bytes = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < count; i++)
        if (!strncmp(array[i], entry, name_bytes))
            return array[i];
    return NULL;
}

/* Whether *array* has *count* entries: the first *num_shared* of *other*, and equal ones to the rest. */
static int mc_environ_is(char **array, char **other, size_t num_shared, size_t count) {
    if (mc_environ_count(array) != count)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (i < num_shared ? array[i] != other[i] : strcmp(array[i], other[i]) != 0)
            return 0;
    return 1;
}

/* Add *num* *entries* ("NAME=value"), in place of those with their names; returns whether there is memory for that. */
static int mc_environ_put(mc_environ *saved, char *const *entries, size_t num) {
    char **now = environ;
    size_t count = mc_environ_count(now), kept = 0, made = 0;
    char **array = calloc(count + num + 1, sizeof *array), **own = calloc(num + 1, sizeof *own),
         **hidden = calloc(count + 1, sizeof *hidden);
    *saved = (mc_environ){.before = now, .array = array, .own = own, .hidden = hidden, .num = num};
    if (array && own && hidden) {
        for (size_t i = 0; i < count; i++) {
            if (mc_environ_find((char **)entries, num, now[i]))
                hidden[saved->num_hidden++] = now[i];
            else
                array[kept++] = now[i];
        }
        while (made < num && (array[kept + made] = strdup(entries[made])))
            made++;
    }
    int failed = !array || !own || !hidden || made < num;
    if (failed || mc_environ_is(mc_environ_last, array, kept, kept + num)) {
        for (size_t i = 0; i < made; i++)
            free(array[kept + i]);
        free(array);
        saved->array = mc_environ_last;
    }
    if (failed) {
        free(own);
        free(hidden);
        return 0;
    }
    memcpy(own, saved->array + kept, num * sizeof *own);
    mc_environ_last = saved->array;
    __atomic_store_n(&environ, saved->array, __ATOMIC_RELEASE);
    return 1;
}

static int mc_environ_has(char **array, size_t count, const char *entry) {
    for (size_t i = 0; i < count; i++)
        if (array[i] == entry)
            return 1;
    return 0;
}

/* Whether nobody has set or removed a variable since `mc_environ_put`. */
static int mc_environ_untouched(const mc_environ *saved) {
    size_t at = 0;
    if (environ != saved->array)
        return 0; /* setenv has made an array of its own, and may have freed the one before */
    for (char **entry = saved->before; entry && *entry; entry++)
        if (!mc_environ_has(saved->hidden, saved->num_hidden, *entry) && environ[at++] != *entry)
            return 0;
    for (size_t i = 0; i < saved->num; i++)
        if (environ[at++] != saved->own[i])
            return 0;
    return environ[at] == NULL;
}

/* Undo `mc_environ_put`; what others have set or removed meanwhile stays so. */
static void mc_environ_take(mc_environ *saved) {
    char **now = environ, **array = saved->before;
    if (!mc_environ_untouched(saved)) {
        size_t count = mc_environ_count(now), kept = 0;
        array = calloc(count + saved->num_hidden + 1, sizeof *array);
        if (!array)
            goto done; /* ours stay */
        for (size_t i = 0; i < count; i++)
            if (!mc_environ_has(saved->own, saved->num, now[i]))
                array[kept++] = now[i];
        size_t theirs = kept;
        for (size_t i = 0; i < saved->num_hidden; i++)
            if (!mc_environ_find(array, theirs, saved->hidden[i]))
                array[kept++] = saved->hidden[i];
        mc_environ_last = NULL; /* it may be theirs now */
    }
    __atomic_store_n(&environ, array, __ATOMIC_RELEASE);
done:
    free(saved->own);
    free(saved->hidden);
}

#endif
