"""nvcd's event loop, sockets and helper processes, who is at the other end of a socket, and the wire format."""
