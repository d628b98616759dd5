/* The C border of the engine: what C code, and the compiled half of an adapter (a TensorFlow op, an XLA custom call),
 * includes. `ringcore.get_include()` tells where it lies.
 *
 * Such a library is not linked with the engine. Python hands it the address of a `ringcore_functions`
 * (`ringcore.capi()`), and it calls through that. Functions are appended, never changed; a library looks whether
 * `version` is the RINGCORE_VERSION that it was compiled with. Codes of collectives, reductions and dtypes are those of the engine (`base/types.hpp`). */
#ifndef RINGCORE_H_
#define RINGCORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RINGCORE_VERSION 4

enum {
  RINGCORE_ALLREDUCE = 0,
  RINGCORE_ALLGATHER = 1,
  RINGCORE_BROADCAST = 2,
  RINGCORE_REDUCESCATTER = 3,
  RINGCORE_ALLTOALL = 4,
  RINGCORE_REDUCE = 5,
  RINGCORE_GATHER = 6,
  RINGCORE_SCATTER = 7,
  RINGCORE_BARRIER = 8,
  RINGCORE_JOIN = 9
};

enum { RINGCORE_SUM = 0, RINGCORE_AVERAGE = 1, RINGCORE_MIN = 2, RINGCORE_MAX = 3, RINGCORE_PRODUCT = 4 };

enum { RINGCORE_COMPRESSION_NONE = 0, RINGCORE_COMPRESSION_INT8 = 1, RINGCORE_COMPRESSION_INT4 = 2 };

enum {
  RINGCORE_UINT8 = 0,
  RINGCORE_INT8 = 1,
  RINGCORE_UINT16 = 2,
  RINGCORE_INT16 = 3,
  RINGCORE_INT32 = 4,
  RINGCORE_INT64 = 5,
  RINGCORE_FLOAT16 = 6,
  RINGCORE_BFLOAT16 = 7,
  RINGCORE_FLOAT32 = 8,
  RINGCORE_FLOAT64 = 9,
  RINGCORE_BOOL = 10
};

enum {
  RINGCORE_OK = 0,
  RINGCORE_INVALID_ARGUMENT = 1,
  RINGCORE_MISMATCH = 2,
  RINGCORE_DUPLICATE_NAME = 3,
  RINGCORE_DEADLOCK = 4,
  RINGCORE_TIMEOUT = 5,
  RINGCORE_PEER_LOST = 6,
  RINGCORE_PROTOCOL = 7,
  RINGCORE_RESOURCE = 8,
  RINGCORE_SHUTDOWN = 9,
  RINGCORE_NOT_INITIALIZED = 10,
  RINGCORE_MEMBERSHIP_CHANGED = 11,
  RINGCORE_EVICTED = 12
};

/* A contiguous tensor. */
typedef struct {
  void* data;
  const uint64_t* shape; /* outermost extent first */
  int32_t dims;
  int32_t dtype;
} ringcore_array;

typedef struct {
  const char* name; /* the same on all ranks; UTF-8 */
  size_t name_bytes;
  int32_t collective;
  int32_t op;          /* of a reduction */
  int32_t root;        /* of a broadcast, reduce, gather or scatter: index in the process set */
  int32_t process_set; /* 0: all ranks */
  int32_t priority;    /* the larger, the sooner */
  int32_t blocking;    /* `submit` returns when it has ended; for threads that would wait anyway */
  double prescale;
  double postscale;
  const ringcore_array* inputs; /* several: a group, which runs as a whole or not at all */
  void* const* outputs;         /* allreduce, broadcast, and reduce on the root: of the inputs' shapes, may be the
                                 * inputs; of a reduce elsewhere NULL. Others: NULL, and
                                 * the engine has the results, or places in host memory with `output_rows` */
  size_t count;                 /* of inputs and outputs; 0 for barrier and join */
  const uint64_t* splits;       /* alltoall, and scatter on the root: rows for each rank; NULL: all alike */
  size_t split_count;
  int32_t on_gpu; /* 1: the tensors lie on `gpu` */
  int32_t gpu;    /* its number, as CUDA_VISIBLE_DEVICES counts */
  void* stream;   /* CUstream, in which the inputs are made and the results are used */
  int32_t owns_gaps; /* 1: what lies between the outputs is nobody else's: tensors at the next multiple of 64 bytes
                      * behind the one before, in memory of `allocate`, are reduced as one */
  const uint64_t* output_rows; /* of allgather, alltoall, gather, scatter, reducescatter: the first dimension of each
                                * output. Where it is not that of the result, the operation fails, on every rank, and
                                * nothing is written */
  int32_t compression; /* of an allreduce: how it may be sent between hosts; the same on all ranks */
} ringcore_request;

/* An operation that has ended. */
typedef struct ringcore_operation ringcore_operation;
/* Memory of the engine: a result, or a place for one. */
typedef struct ringcore_memory ringcore_memory;

/* Called once, on any thread, maybe before `submit` returns. `operation` is gone when it returns. It may submit. */
typedef void (*ringcore_done)(void* context, ringcore_operation* operation);

typedef struct {
  uint32_t version;

  /* Starts an operation; everything that is wrong with it is told to `done`. Inputs and outputs stay where they are
   * until then; the request itself does not. */
  void (*submit)(const ringcore_request* request, ringcore_done done, void* context);

  /* RINGCORE_OK, or what kind of error it ended with. `*message` lives as long as the operation, and begins with the
   * name of the exception that it would be in Python: `ringcore.adapter.as_ringcore_error` makes it one again. */
  int32_t (*error)(const ringcore_operation* operation, const char** message);
  /* Of allgather, alltoall, gather, scatter and reducescatter, of the input `index`: takes the result over. Aligned to 64
   * bytes. */
  ringcore_memory* (*take_result)(ringcore_operation* operation, size_t index, void** data, size_t* bytes);
  void (*free_memory)(ringcore_memory* memory);
  /* Of allgather, alltoall, gather and scatter: the rows that came from each rank, of the input `index`. */
  const uint64_t* (*rows)(const ringcore_operation* operation, size_t index, size_t* count);
  /* Of join: the rank that joined last. */
  int32_t (*last_joined)(const ringcore_operation* operation);
  /* This rank's number and the number of ranks, or of a process set's members; -1 where there are none. */
  int32_t (*rank)(int32_t process_set);
  int32_t (*size)(int32_t process_set);
  /* The same among the ranks of this host. */
  int32_t (*local_rank)(void);
  int32_t (*local_size)(void);
  /* Memory that the other ranks see, for an operation whose input and output it is: they reduce it where it lies. NULL
   * where that brings nothing: for few bytes, with ranks on other hosts, without shared memory. To be freed, also after
   * the engine has ended; to get as many bytes again costs nothing then. */
  ringcore_memory* (*allocate)(size_t bytes, void** data);
  /* memcpy into such memory, past the caches where that is quicker: nobody reads it before it is reduced. */
  void (*copy)(void* to, const void* from, size_t bytes);

  /* On GPUs `done` tells that the operation was launched. What `stream` is given after this call runs behind it.
   * RINGCORE_OK, or the kind of error where the GPU has failed. */
  int32_t (*hold_back)(const ringcore_operation* operation, void* stream);
  /* Copies the result of the input `index` to `target` on the GPU, in `stream`, if it has so many bytes; returns how many
   * it has, SIZE_MAX where the GPU has failed. In place of `take_result`. */
  size_t (*copy_result)(ringcore_operation* operation, size_t index, void* target, size_t bytes, void* stream);
} ringcore_functions;

#ifdef __cplusplus
}
#endif

#endif /* RINGCORE_H_ */
