-- Does a link have errors: network ports whose counters of errors, of packets sent again, or of congestion have grown.
SELECT host, device, port, kind, max(errors) - min(errors) AS errors, max(retransmits) - min(retransmits) AS retransmits,
       max(congestion) - min(congestion) AS congestion,
       round(extract(epoch FROM max(t) - min(t)), 1) AS seconds
FROM net_samples
GROUP BY host, device, port, kind
HAVING max(errors) > min(errors) OR max(retransmits) > min(retransmits) OR max(congestion) > min(congestion)
ORDER BY 5 DESC, 6 DESC, host, device, port
LIMIT 50
