"""Problems made smaller by what is alike in them."""
