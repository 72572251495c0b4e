-- Which rank stands elsewhere than the others: the places of the program where ranks are, those of the fewest first.
SELECT count(DISTINCT run || '/' || mesh || '/' || rank || '/' || pid) AS procs, min(rank) AS a_rank, min(host) AS a_host,
       function, line, stack
FROM stacks
WHERE program AND problem = ''
GROUP BY function, line, stack
ORDER BY procs, a_rank, stack
LIMIT 20
