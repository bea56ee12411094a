// Native work without Python's global lock.
#pragma once

#include <Python.h>

// Lets other Python threads run while it lives. Once the interpreter ends, any thread but the one that ends it is held
// for good where it begins or ends native work: Python would end it by unwinding its stack, which C++ turns into an
// abort, and llama.cpp's static objects go while it still computes.
class ReleasedGil {
  public:
    ReleasedGil();
    ~ReleasedGil();
    ReleasedGil(const ReleasedGil &) = delete;
    ReleasedGil &operator=(const ReleasedGil &) = delete;

    // For Python's `atexit`: waits for the steps that run.
    static void on_exit();
    // For a child process, where the threads of its parent are not.
    static void on_fork();

  private:
    PyThreadState *state_;
};
