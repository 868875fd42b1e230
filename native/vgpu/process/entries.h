/* The functions of a real library, from a table of its entries: their types, numbers and, for what is wrapped, declarations.
 * Whoever includes this has defined REAL_TABLE, REAL_RESULT and REAL_API, and what a row of the table means: one that is not
 * PASS is CLASS_ROW(symbol, memory, parameters). REAL(name)(...) calls one, which is found when first called. */
#include "place.h"

#include <stdatomic.h>

#define PASS_ROW(symbol, ...)
#define GATE_ROW ACCOUNT_ROW
#define VIEW_ROW ACCOUNT_ROW
#define HOLD_ROW ACCOUNT_ROW

#define ACCOUNT_ROW(symbol, memory, parameters)                                                             \
    typedef REAL_RESULT(*type_##symbol) parameters;                                                         \
    REAL_API REAL_RESULT symbol parameters;
#define CALL_ROW(symbol, memory, parameters) typedef REAL_RESULT(*type_##symbol) parameters;
#include REAL_TABLE
#undef ACCOUNT_ROW
#undef CALL_ROW

enum {
#define ACCOUNT_ROW(symbol, memory, parameters) REAL_##symbol,
#define CALL_ROW ACCOUNT_ROW
#include REAL_TABLE
#undef ACCOUNT_ROW
    REAL_COUNT
};

extern void *_Atomic real_entries[REAL_COUNT];

void *real_find(int index);

static inline void *real_get(int index)
{
    void *entry = atomic_load_explicit(&real_entries[index], memory_order_acquire);
    return __builtin_expect(entry != NULL, 1) ? entry : real_find(index);
}

#define REAL(name) ((type_##name)real_get(REAL_##name))

#ifdef REAL_FILE /* in the one source that finds them; where the library lacks one, it is a function that returns REAL_LACKS */

static REAL_RESULT missing(void)
{
    return REAL_LACKS;
}

void *_Atomic real_entries[REAL_COUNT];

void *real_find(int index)
{
#define ACCOUNT_ROW(symbol, memory, parameters) #symbol,
    static const char *const names[] = {
#include REAL_TABLE
    };
    place_resolve(REAL_FILE, names, real_entries, REAL_COUNT, (void *)missing);
    return atomic_load(&real_entries[index]);
}
#undef ACCOUNT_ROW

#endif
#undef CALL_ROW
