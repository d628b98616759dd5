// Whether a process can go on by itself, as the kernel sees it.
//
// Frameworks wait in ways of their own: in the thread that runs a graph, on a queue, on an array. What all of these come
// to is a thread that sleeps in a futex which only its own process knows, for as long as it takes. When all threads sleep
// so, nothing wakes any of them but what the rest of the process does.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>

namespace ringcore {

// Whether a thread sleeps until another one of its process wakes it: `call` is what /proc says that it is in, the system
// call's number and its arguments, the stack's end and the instruction. A limit, another process or a descriptor would wake
// it as well; a limit is nothing to a bystander.
bool waits_for_own_process(const std::string& call);

// Code of this process from which no thread that has called something returns, and which does nothing that others see: a
// thread of a framework that only says after minutes what takes long. When such a thread wakes by a clock, nothing follows.
void add_bystanders_code(std::uintptr_t begin, std::uintptr_t end);

// Whether all threads of this process but these sleep so, all of them at one moment. False where that cannot be seen.
bool all_sleep_but(std::span<const pid_t> threads);

}  // namespace ringcore
