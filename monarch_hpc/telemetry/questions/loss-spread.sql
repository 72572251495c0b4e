-- Where the loss diverges: of each step, its mean and its spread over ranks, NaN and the widest first.
SELECT run, name, step, count(*) AS "values", avg(value) AS mean, min(value) AS least, max(value) AS most,
       max(value) - min(value) AS spread
FROM metrics
WHERE name LIKE '%loss%' AND step >= 0
GROUP BY run, name, step
HAVING count(*) > 1
ORDER BY CASE WHEN isnan(max(value) - min(value)) THEN 0 ELSE 1 END, spread DESC, step, name, run
LIMIT 20
