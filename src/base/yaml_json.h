/* SPDX-License-Identifier: Apache-2.0
 * A YAML value as JSON, by YAML's core schema: plain null, booleans and numbers are those, every
 * other scalar is a string. */
#ifndef BASE_YAML_JSON_H
#define BASE_YAML_JSON_H

#include "base/buf.h"
#include "base/yaml.h"

/* Appends the value at the current event and moves to its last one. Numbers keep their text where
 * JSON can have it. Refuses what JSON cannot say (infinity, a list as a key), and what is nested
 * deeper than JSON may be; equal keys pass. Messages begin with `who` and a colon. */
MUST_USE bool yaml_to_json(struct yaml *y, struct str who, struct buf *out);

#endif
