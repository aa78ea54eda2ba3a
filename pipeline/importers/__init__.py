"""One file per transcript format: each turns a file into events, in order, without holding it in memory."""
