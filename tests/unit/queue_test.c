/* SPDX-License-Identifier: Apache-2.0 */
#include "base/queue.h"

#include "base/clock.h"
#include "support/check.h"

#include <pthread.h>

struct item {
    struct queue_node node; /* first, so that a node's address is its item's */
    int producer, number;
};

static struct item *item_of(struct queue_node *n)
{
    return (struct item *)(void *)n;
}

static void takes_in_order(void **state)
{
    struct queue *q = queue_new();
    struct item items[5];

    (void)state;
    assert_null(queue_take_all(q, 0));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            items[i].number = i;
            queue_push(q, &items[i].node);
        }
        int i = 0;
        for (struct queue_node *n = queue_take_all(q, INT64_MAX); n != NULL; n = n->next)
            assert_int_equal(item_of(n)->number, i++);
        assert_int_equal(i, 5);
        assert_null(queue_take_all(q, 0));
    }
    queue_free(q);
    queue_free(NULL);
}

static void waits_until_the_deadline(void **state)
{
    struct queue *q = queue_new();
    int64_t before = clock_mono_us();

    (void)state;
    assert_null(queue_take_all(q, before + 5000));
    assert_true(clock_mono_us() >= before + 5000);
    assert_null(queue_take_all(q, before)); /* long past */
    assert_null(queue_take_all(q, -1));
    queue_free(q);
}

static void a_wake_before_the_wait_is_kept(void **state)
{
    struct queue *q = queue_new();

    (void)state;
    queue_wake(q);
    assert_null(queue_take_all(q, INT64_MAX)); /* returns; a lost wake-up would hang here */
    queue_wake(q);
    queue_wake(q);
    assert_null(queue_take_all(q, 0)); /* and is used up by one call, however that waits */
    int64_t before = clock_mono_us();
    assert_null(queue_take_all(q, before + 2000));
    assert_true(clock_mono_us() >= before + 2000);
    queue_free(q);
}

static void *wake_later(void *q)
{
    queue_wake(q);
    return NULL;
}

static void wakes_a_sleeper(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) { /* before, while and after it falls asleep */
        struct queue *q = queue_new();
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, wake_later, q), 0);
        assert_null(queue_take_all(q, INT64_MAX));
        pthread_join(t, NULL);
        queue_free(q);
    }
}

enum { PRODUCERS = 4, EACH = 20000 };

struct producer {
    struct queue *q;
    struct item *items;
    int id;
};

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (int i = 0; i < EACH; i++) {
        p->items[i].producer = p->id;
        p->items[i].number = i;
        queue_push(p->q, &p->items[i].node);
    }
    return NULL;
}

static void carries_everything_of_many_producers(void **state)
{
    static struct item items[PRODUCERS][EACH];
    struct queue *q = queue_new();
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    int next[PRODUCERS] = {0}, total = 0;

    (void)state;
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){q, items[i], i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    while (total < PRODUCERS * EACH) {
        struct queue_node *following;
        for (struct queue_node *n = queue_take_all(q, INT64_MAX); n != NULL;
             n = following, total++) {
            struct item *it = item_of(n);
            following = n->next;
            if (it->number != next[it->producer]++) /* a producer's own nodes stay in order */
                CHECKF(false, "producer %d: number %d", it->producer, it->number);
        }
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    assert_null(queue_take_all(q, 0));
    queue_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_in_order),
        cmocka_unit_test(waits_until_the_deadline),
        cmocka_unit_test(a_wake_before_the_wait_is_kept),
        cmocka_unit_test(wakes_a_sleeper),
        cmocka_unit_test(carries_everything_of_many_producers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
