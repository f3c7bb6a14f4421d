/* SPDX-License-Identifier: Apache-2.0
 * The edit distance behind "did you mean". */
#include "base/suggest.h"

#include <stdint.h>
#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edit distance with swaps of neighbours, which are the commonest typing errors. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][SUGGEST_MAX_WORD + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];

    for (size_t j = 0; j <= nb; j++)
        above[j] = j;
    for (size_t i = 1; i <= na; i++) {
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);

            row[j] = min_size(change, min_size(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min_size(row[j], before[j - 2] + 1);
        }
        size_t *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[nb];
}

const char *suggest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t word_n = strlen(word), best_distance = SIZE_MAX;

    if (word_n == 0 || word_n > SUGGEST_MAX_WORD)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t candidate_n = strlen(candidates[i]);

        if (candidate_n > SUGGEST_MAX_WORD)
            continue;
        size_t d = edit_distance(word, word_n, candidates[i], candidate_n);
        size_t shorter = min_size(word_n, candidate_n);
        if (shorter >= 2 && strncmp(candidates[i], word, shorter) == 0)
            d = min_size(d, 1); /* cut off or drawn out rather than mistyped */
        if (d < best_distance) {
            best = candidates[i];
            best_distance = d;
        }
    }
    return best_distance <= 1 + word_n / 4 ? best : NULL;
}
