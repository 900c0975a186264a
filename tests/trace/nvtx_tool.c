/* A tool as NVTX 3 loads it: it prints ranges that are pushed and popped in domains. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { CALLBACKS = 1, CORE2 = 5, PUSH = 4, POP = 5, REGISTER = 10, ASCII = 1, REGISTERED = 3 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved;
    uint64_t payload;
    int32_t messageType;
    const char *message;
} Attributes;

typedef struct {
    size_t size;
    int (*table_of)(int module, void ****table, unsigned *n);
} Callbacks;

static int push(void *domain, const Attributes *a) {
    printf("push %s\n", a->messageType == ASCII || a->messageType == REGISTERED ? a->message : "?");
    fflush(stdout);
    return 0;
}

static int pop(void *domain) {
    printf("pop\n");
    fflush(stdout);
    return 0;
}

static void *register_string(void *domain, const char *text) {
    return strdup(text);
}

int InitializeInjectionNvtx2(const void *(*export_of)(uint32_t)) {
    const Callbacks *callbacks = export_of(CALLBACKS);
    void ***table;
    unsigned n;
    if (!callbacks || !callbacks->table_of(CORE2, &table, &n)) return 0;
    *table[PUSH] = push;
    *table[POP] = pop;
    *table[REGISTER] = register_string;
    return 1;
}
