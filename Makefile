# Builds build/rebuno and its tests. Variants live in folders of their own: `make` (build/), `make SAN=address`
# (build/asan/), `make SAN=thread` (build/tsan/), `make FUZZ=1` (build/fuzz/, clang and libFuzzer), `make FAULT=1`
# (build/fault/, with the points of base/fault.h, at which tests let it die).
#
#   make              the program
#   make unit         C tests of this variant, built and run
#   make fuzzers      FUZZ=1 only: the fuzz targets
#   make check        layers, style, headers, unit tests
#   make lint         clang-tidy over src/ (.clang-tidy says what for)
#   make analyze      gcc's static analyzer over src/
#   make format       clang-format over src/, tests/ and bench/; `make check-format` only looks
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CXX ?= g++

ifneq ($(FUZZ),)
OUT := build/fuzz
CC := clang-14
CXX := clang++-14
SANFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -g
else ifeq ($(SAN),address)
OUT := build/asan
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g
else ifeq ($(SAN),thread)
OUT := build/tsan
SANFLAGS := -fsanitize=thread -fno-omit-frame-pointer -g
else ifneq ($(FAULT),)
OUT := build/fault
SANFLAGS :=
FAULTS := -DREBUNO_FAULTS
else
OUT := build
SANFLAGS :=
endif

PKGS := libcurl sqlite3 libpq libfyaml libcrypto libzstd re2
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PKGS)))
PKG_LIBS := $(shell pkg-config --libs $(PKGS))

COMMON_WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes \
	-Wmissing-prototypes -Wold-style-definition -Wformat=2 -Wvla -Wundef -Wswitch-enum -Wnull-dereference \
	-Wpointer-arith -Wwrite-strings -Wcast-qual
GCC_WARN := -Wimplicit-fallthrough=5 -Wduplicated-cond -Wduplicated-branches -Wlogical-op
ifeq ($(FUZZ),)
WARN := $(COMMON_WARN) $(GCC_WARN)
else
WARN := $(COMMON_WARN) -Wimplicit-fallthrough
endif
CXX_WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wformat=2 -Wundef -Wpointer-arith \
	-Wcast-qual -Wold-style-cast
ifeq ($(CI),true)
WARN += -Werror
CXX_WARN += -Werror
endif
ifeq ($(SANFLAGS),)
HARDEN := -D_FORTIFY_SOURCE=2
endif
# The optimizer sees NULL dereferences through sanitizer branches that are not there.
ifneq ($(SANFLAGS),)
WARN += -Wno-null-dereference $(if $(FUZZ),,-Wno-maybe-uninitialized)
endif

CFLAGS := -std=c17 -D_GNU_SOURCE -O2 -g $(HARDEN) -fstack-protector-strong -fPIE -pthread $(WARN) $(SANFLAGS)
# The wrapper of RE2 (src/policy/regex.cc) is C++ behind a C interface.
CXXFLAGS := -std=c++17 -D_GNU_SOURCE -O2 -g $(HARDEN) -fno-rtti -fstack-protector-strong -fPIE \
	-pthread $(CXX_WARN) $(SANFLAGS)
CPPFLAGS := -Isrc -I$(OUT)/gen $(FAULTS) $(PKG_CFLAGS)
LDFLAGS := -pie -Wl,-z,relro,-z,now -pthread $(SANFLAGS)
LDLIBS := $(PKG_LIBS) -lstdc++ -lm

SRC := $(sort $(wildcard src/*/*.c))
CXX_SRC := $(sort $(wildcard src/*/*.cc))
OBJ := $(SRC:src/%.c=$(OUT)/obj/%.o) $(CXX_SRC:src/%.cc=$(OUT)/obj/%.o)
LIB := $(OUT)/librebuno.a
UNIT_SRC := $(sort $(wildcard tests/unit/*_test.c tests/store/*_test.c))
UNIT_BIN := $(UNIT_SRC:tests/%.c=$(OUT)/tests/%)
SUPPORT_SRC := $(sort $(wildcard tests/support/*.c))
SUPPORT := $(OUT)/libsupport.a
FUZZ_SRC := $(sort $(wildcard tests/fuzz/*_fuzz.c))
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(OUT)/%)
BENCH_SRC := $(sort $(wildcard bench/*.c))
BENCH_BIN := $(BENCH_SRC:bench/%.c=$(OUT)/bench/%) $(OUT)/bench/sync_count.so $(OUT)/bench/rebuno-whole
BENCH_LIB := $(patsubst bench/%.c,$(OUT)/bench/%.o,$(sort $(wildcard bench/lib/*.c))) \
	$(filter-out $(OUT)/obj/base/yaml% $(OUT)/obj/base/pack%,$(filter $(OUT)/obj/base/% $(OUT)/obj/domain/%,$(OBJ)))
HEADERS := $(sort $(wildcard src/*/*.h))
LINT := $(patsubst src/%.c,$(OUT)/lint/%.ok,$(SRC) src/main.c) $(patsubst src/%.cc,$(OUT)/lint/%.ok,$(CXX_SRC))
ANALYZED := $(patsubst src/%.c,build/analyze/%.o,$(SRC) src/main.c)
FORMATTED := $(sort $(wildcard src/*.c src/*/*.c src/*/*.cc src/*/*.h tests/*/*.c tests/*/*.h bench/*.c bench/*/*.c bench/*/*.h))
MIGRATIONS := $(sort $(wildcard src/store/migrations/*/*.sql))
VERSION := $(shell cat VERSION)

.PHONY: all unit unit-programs fuzzers bench check check-format check-headers check-layers check-style format lint analyze clean
.SECONDARY:
all: $(OUT)/rebuno

$(OUT)/rebuno: $(OUT)/obj/main.o $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIB): $(OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(OUT)/obj/%.o: src/%.c | $(OUT)/gen/migrations.inc
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -DREBUNO_VERSION='"$(VERSION)"' $(CFLAGS) -MMD -MP -c -o $@ $<

$(OUT)/obj/%.o: src/%.cc
	@mkdir -p $(@D)
	$(CXX) -Isrc $(PKG_CFLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<

$(OUT)/tests/%.o: tests/%.c | $(OUT)/gen/migrations.inc
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP -c -o $@ $<

$(SUPPORT): $(SUPPORT_SRC:tests/%.c=$(OUT)/tests/%.o)
	@rm -f $@
	$(AR) rcs $@ $^

# gold comes with ld, and takes a third of its time.
$(OUT)/tests/%: $(OUT)/tests/%.o $(SUPPORT) $(LIB)
	$(CC) $(LDFLAGS) -fuse-ld=gold -o $@ $^ $(LDLIBS) -lcmocka

# The bench measures the kernel from outside and links none of it but base/ and domain/.
$(OUT)/bench/%.o: bench/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Ibench $(CFLAGS) -MMD -MP -c -o $@ $<

$(OUT)/bench/%: $(OUT)/bench/%.o $(BENCH_LIB)
	$(CC) $(LDFLAGS) -o $@ $^ -lcrypto -lm

# The program, but for what bench/variants/ puts in the place of one of its parts.
$(OUT)/bench/rebuno-%: $(OUT)/obj/main.o $(OUT)/bench/variants/%.o $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(OUT)/bench/%.so: bench/preload/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Ibench $(filter-out -fPIE,$(CFLAGS)) -fPIC -shared -MMD -MP -o $@ $<

$(OUT)/%_fuzz: tests/fuzz/%_fuzz.c $(LIB)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $< $(LIB) $(LDLIBS)

# Migrations are embedded: one table a dialect, in the order of their numbers.
$(OUT)/gen/migrations.inc: $(MIGRATIONS) tools/embed_migrations.sh
	@mkdir -p $(@D)
	sh tools/embed_migrations.sh src/store/migrations > $@.tmp && mv $@.tmp $@

unit-programs: $(UNIT_BIN)

# The longest first, so that it does not run alone at the end.
unit: $(UNIT_BIN)
	sh tools/run_unit.sh $(filter %/simulation_test,$^) $(filter-out %/simulation_test,$^)

fuzzers: $(FUZZ_BIN)

bench: $(BENCH_BIN)

check-layers:
	sh tools/check_layers.sh

check-style:
	python3 tools/check_style.py

check-headers: $(OUT)/gen/migrations.inc
	@for h in src/*/*.h; do \
		$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused-macros -fsyntax-only -x c $$h || exit 1; done
	@echo "headers compile alone"

check: check-layers check-style check-headers unit

lint: $(LINT)

$(OUT)/lint/%.ok: src/%.c $(HEADERS) .clang-tidy | $(OUT)/gen/migrations.inc
	@mkdir -p $(@D)
	clang-tidy-14 --quiet $< -- -std=c17 -D_GNU_SOURCE $(CPPFLAGS) -DREBUNO_VERSION='"$(VERSION)"'
	@touch $@

$(OUT)/lint/%.ok: src/%.cc $(HEADERS) .clang-tidy
	@mkdir -p $(@D)
	clang-tidy-14 --quiet $< -- -std=c++17 -D_GNU_SOURCE -fno-rtti -Isrc $(PKG_CFLAGS)
	@touch $@

# Follows whole paths, for leaks, NULL, and memory that is freed or was never set. Six times gcc's own patience: with less it
# gives up on one function in ten. At -O1, where it is fastest and finds the most; without _FORTIFY_SOURCE, whose memcpy it
# does not know. Not C++, which gcc 12 cannot analyze. What it finds wrongly is mended by saying the code more plainly, or by
# an ASSERT of what it overlooks.
analyze: $(ANALYZED)
	@echo "gcc's analyzer finds nothing in $(words $(ANALYZED)) files"

build/analyze/%.o: src/%.c | $(OUT)/gen/migrations.inc
	@mkdir -p $(@D)
	gcc $(CPPFLAGS) -DREBUNO_VERSION='"$(VERSION)"' -std=c17 -D_GNU_SOURCE -O1 -pthread -Werror \
		-fanalyzer --param analyzer-bb-explosion-factor=30 -MMD -MP -c -o $@ $<

format:
	clang-format-14 -i $(FORMATTED)

check-format:
	clang-format-14 --dry-run -Werror $(FORMATTED)

clean:
	rm -rf build

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
