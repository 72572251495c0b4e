/* What core.h does where memory ends, without UCX: run by `tests.ucx.test_memory_ends`, it prints each outcome. */
#include <stdio.h>
#include <stdlib.h>

static int no_memory;

static void *bounded_malloc(size_t num_bytes) { return no_memory ? NULL : malloc(num_bytes); }
static void *bounded_calloc(size_t num, size_t num_bytes) { return no_memory ? NULL : calloc(num, num_bytes); }

#define malloc bounded_malloc
#define calloc bounded_calloc
#include "core.h"

static void *refuse(mh_ep_h endpoint, unsigned id, const void *header, size_t header_bytes, const void *data,
                    size_t num_bytes, const mh_request_param_t *param) {
    (void)endpoint, (void)id, (void)header, (void)header_bytes, (void)data, (void)num_bytes, (void)param;
    return (void *)(intptr_t)MH_ERR_NO_MEMORY;
}

static void show(const char *what, mc_worker *worker) {
    mc_event *event;
    printf("%s:", what);
    mc_take(worker);
    while ((event = mc_pop(worker))) {
        printf(" %d of lane %u life %u status %d", event->kind, event->lane, event->life, event->status);
        mc_dispose(worker, event);
    }
    printf(", %zu left\n", atomic_load(&worker->num_events));
}

int main(void) {
    unsigned char random[MC_TOKEN_BYTES] = {0}, header[MC_HEADER_BYTES] = {0};
    char data[64] = {0};
    mc_worker *worker = mc_worker_new();
    mc_lane *lane = mc_lane_open(worker, random);
    mc_operation operation = {.worker = worker, .owner = data};
    memcpy(header, lane->own_token, MC_TOKEN_BYTES);
    mh_ucp.am_send_nbx = refuse;

    no_memory = 1;
    mc_on_small(worker, header, sizeof header, data, sizeof data, &(mh_am_recv_param_t){0});
    show("a message that cannot be kept", worker);
    mc_begin(&operation);
    mc_finish(&operation, MH_OK);
    show("an operation that is done", worker);
    printf("a record: %d\n", mc_send_small(lane, data, sizeof data, data, 0, 1));
    printf("another lane: %p\n", (void *)mc_lane_open(worker, random));
    mc_lane_has_room(lane, 1);
    mc_sent(lane, 0);
    show("room", worker);

    no_memory = 0;
    atomic_store(&worker->polls, 1); /* so that the next record is sent at once */
    printf("a record that UCX refuses: %d\n", mc_send_small(lane, data, sizeof data, data, 0, 1));
    mc_lane_failed(lane, MH_ERR_NOT_CONNECTED);
    mc_take(worker);
    mc_give_back(worker, mc_pop(worker));
    mc_lane_closed(lane);
    printf("the slot of a lane whose event waits is used: %d\n", mc_lane_open(worker, random) == lane);
    show("events of a closed lane, given back", worker);
    printf("and afterwards: %d\n", mc_lane_open(worker, random) == lane);
    mc_worker_free(worker);
    return 0;
}
