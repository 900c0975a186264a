/* Handles: made, recognised, and never freed, so that one used after its end is an error. */
#include "stub.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }

void *create(int kind, size_t size)
{
    struct object *object = calloc(1, size);
    object->kind = kind;
    object->alive = 1;
    lock();
    object->next = objects;
    objects = object;
    unlock();
    return object;
}

bool lives(const void *handle, int kind)
{
    bool found = false;
    lock();
    for (struct object *object = objects; object && !found; object = object->next)
        found = object == handle && object->kind == kind && object->alive;
    unlock();
    return found;
}

bool any_stream(bool (*test)(struct capture *, CUstream), struct capture *c)
{
    bool any = false;
    lock();
    for (struct object *object = objects; object; object = object->next)
        if (object->kind == STREAM && test(c, (CUstream)object))
            any = true;
    unlock();
    return any;
}

CUstream next_stream(CUstream before)
{
    lock();
    struct object *object = before ? before->object.next : objects;
    while (object && !(object->kind == STREAM && object->alive))
        object = object->next;
    unlock();
    return (CUstream)object;
}
