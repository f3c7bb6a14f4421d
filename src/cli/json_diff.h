/* SPDX-License-Identifier: Apache-2.0
 * Where two JSON values differ. */
#ifndef CLI_JSON_DIFF_H
#define CLI_JSON_DIFF_H

#include "base/arena.h"

/* One place: ".options.mode", "[3].text", "" for the whole. A side that has nothing there is
 * absent. All borrowed. */
typedef void json_difference(void *ctx, struct str path, struct str a, struct str b);

/* Calls `take` for the first `max` places, in a's order, then what only b has; how many there are,
 * max + 1 if there are more. White space, escapes and the order of members make no difference;
 * items of lists are compared by their places. Two strings that hold an object each, or a list, are
 * compared inside: ".body.choices[0]". Both values are valid, or absent. */
size_t json_diff(struct str a, struct str b, size_t max, json_difference *take, void *ctx);

#endif
