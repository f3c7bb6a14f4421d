/* SPDX-License-Identifier: Apache-2.0
 * Named points where a test lets the process die, or a call fail, as a crash or a broken disk
 * would at that very moment. They are there in the variant `make FAULT=1` alone.
 *
 * REBUNO_FAULT=name[:nth][:fail] chooses one: it acts when it is passed for the nth time (1 if not
 * said), once. It kills the process with SIGKILL; with `fail` FAULT_FAILS is true instead. All
 * points, and what tests do at each, stand in tests/harness/faults.py: a name is used once, and one
 * that is not in that table fails the tests. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>

#ifdef REBUNO_FAULTS
#define FAULT(name) fault_pass(name)
#define FAULT_FAILS(name) fault_pass_or_fail(name)
#else
#define FAULT(name) ((void)0)
#define FAULT_FAILS(name) false
#endif

/* Use the macros. Any thread. */
void fault_pass(const char *name);
bool fault_pass_or_fail(const char *name); /* the caller is to fail */

#endif
