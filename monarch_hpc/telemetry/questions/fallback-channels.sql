-- Which channels fell back, and why: those of programs to their procs that use neither RDMA nor shared memory.
SELECT run, host, fabric, reason, channels
FROM channels
WHERE run <> '' AND fabric NOT LIKE 'ucx%'
ORDER BY channels DESC, host, run, fabric, reason
LIMIT 50
